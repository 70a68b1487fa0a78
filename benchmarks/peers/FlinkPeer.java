import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * Times one of the four queries through Flink CEP or Flink SQL: one JVM, one slot, once after a warm-up job.
 *
 *   FlinkPeer (cep | sql) (rise | drop | path | funnel | counted) input=FOLDER answer=FILE warm=ROWS KEY=VALUE...
 *
 * benchmarks/peers/flink.py compiles and starts it, and writes the folder: a little-endian file for each column. All
 * columns are in memory before the clock starts; the source makes an object of each row. Times are microseconds since
 * the first event, and Flink is told that they are milliseconds, the finest it knows: WITHIN is a thousand times as
 * long, and nothing is rounded.
 *
 * Prints the seconds from the first event to the last match, those of the whole job, and those of the warm-up job. The
 * answer is a file of five columns of 64-bit words, one after the other; of `counted` only the first is used, with the
 * number of matches of each key.
 */
public final class FlinkPeer {
    static Columns in;
    static Answer answer;
    static volatile long firstNanos, lastNanos, firstCpu, lastCpu;

    /** The input, one array a column; which of them are there depends on the question. */
    static final class Columns {
        long[] ts;
        int[] code;
        String[] names;
        byte[] word;
        String[] words;
        double[] price;
        long[] whole;
        long[] volume;
    }

    /** An event of any of the queries. */
    public static final class Event {
        public long ts;
        public String name;
        public String word;
        public double price;
        public long whole;
        public long volume;
        public int code;

        public Event() {}
    }

    /** What was found, one column of 64-bit words for each value of a match. */
    static final class Answer {
        final long[][] columns;
        int count;

        Answer(int width) {
            columns = new long[width][1024];
        }

        void add(long a, long b, long c, long d, long e) {
            if (count == columns[0].length) {
                for (int i = 0; i < columns.length; i++) columns[i] = Arrays.copyOf(columns[i], 2 * count);
            }
            columns[0][count] = a;
            columns[1][count] = b;
            columns[2][count] = c;
            columns[3][count] = d;
            columns[4][count] = e;
            count++;
        }
    }

    static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    static final class Make implements MapFunction<Long, Event> {
        @Override
        public Event map(Long at) {
            int i = at.intValue();
            if (i == 0) {
                firstCpu = cpu();
                firstNanos = System.nanoTime();
            }
            Event e = new Event();
            e.ts = in.ts[i];
            e.code = in.code[i];
            e.name = in.names == null ? "" : in.names[e.code];
            e.word = in.words == null ? "" : in.words[in.word[i]];
            if (in.price != null) e.price = in.price[i];
            if (in.whole != null) e.whole = in.whole[i];
            if (in.volume != null) e.volume = in.volume[i];
            return e;
        }
    }

    /** Records matches and when the last was found. */
    abstract static class Record extends PatternProcessFunction<Event, Integer> {
        @Override
        public void processMatch(Map<String, List<Event>> match, Context context, Collector<Integer> out) {
            record(match);
        }

        abstract void record(Map<String, List<Event>> match);

        @Override
        public void close() {
            lastNanos = System.nanoTime();
            lastCpu = cpu();
        }
    }

    static final class RecordRise extends Record {
        @Override
        void record(Map<String, List<Event>> match) {
            List<Event> b = match.get("B");
            Event a = match.get("A").get(0);
            answer.add(a.code, a.ts, Double.doubleToRawLongBits(b.get(b.size() - 1).price),
                Double.doubleToRawLongBits(match.get("C").get(0).price), 0);
        }
    }

    static final class RecordDrop extends Record {
        @Override
        void record(Map<String, List<Event>> match) {
            List<Event> a = match.get("A");
            answer.add(a.get(0).code, a.get(0).ts, a.size(), match.get("B").get(0).whole, 0);
        }
    }

    static final class RecordTimes extends Record {
        final boolean four;

        RecordTimes(boolean four) {
            this.four = four;
        }

        @Override
        void record(Map<String, List<Event>> match) {
            Event a = match.get("A").get(0);
            long d = four ? match.get("D").get(0).ts : 0;
            answer.add(a.code, a.ts, match.get("B").get(0).ts, match.get("C").get(0).ts, d);
        }
    }

    static final class RecordCounts extends Record {
        @Override
        void record(Map<String, List<Event>> match) {
            answer.columns[0][match.get("A").get(0).code]++;
        }
    }

    static Event last(Iterable<Event> events) {
        Event found = null;
        for (Event e : events) found = e;
        return found;
    }

    static final class Rises extends IterativeCondition<Event> {
        @Override
        public boolean filter(Event e, Context<Event> context) throws Exception {
            Event before = last(context.getEventsForPattern("B"));
            if (before == null) before = last(context.getEventsForPattern("A"));
            return e.price > before.price;
        }
    }

    static final class Falls extends IterativeCondition<Event> {
        @Override
        public boolean filter(Event e, Context<Event> context) throws Exception {
            return e.price < last(context.getEventsForPattern("B")).price;
        }
    }

    static final class AboveAverage extends IterativeCondition<Event> {
        final long floor;

        AboveAverage(long floor) {
            this.floor = floor;
        }

        @Override
        public boolean filter(Event e, Context<Event> context) throws Exception {
            long sum = 0, count = 0;
            for (Event before : context.getEventsForPattern("A")) {
                sum += before.whole;
                count++;
            }
            return count == 0 ? e.volume > floor : e.whole * count > sum;
        }
    }

    static final class VolumeDrops extends IterativeCondition<Event> {
        final long percent;

        VolumeDrops(long percent) {
            this.percent = percent;
        }

        @Override
        public boolean filter(Event e, Context<Event> context) throws Exception {
            return 100 * e.volume < percent * last(context.getEventsForPattern("A")).volume;
        }
    }

    static final class Word extends SimpleCondition<Event> {
        final String word;

        Word(String word) {
            this.word = word;
        }

        @Override
        public boolean filter(Event e) {
            return e.word.equals(word);
        }
    }

    static Pattern<Event, ?> pattern(String question, Map<String, String> options) {
        // WITHIN is exclusive in Flink
        Duration within = Duration.ofMillis(Long.parseLong(options.getOrDefault("within", "0")) + 1);
        String[] words = options.getOrDefault("words", "").split(",");
        switch (question) {
            case "rise":
                return Pattern.<Event>begin("A", AfterMatchSkipStrategy.skipPastLastEvent())
                    .next("B").where(new Rises()).oneOrMore().consecutive()
                    .next("C").where(new Falls());
            case "drop":
                return Pattern.<Event>begin("A").where(new AboveAverage(Long.parseLong(options.get("volume"))))
                    .oneOrMore()
                    .followedBy("B").where(new VolumeDrops(Long.parseLong(options.get("percent"))))
                    .within(within);
            case "path":
                return Pattern.<Event>begin("A").where(new Word(words[0])).followedBy("B").where(new Word(words[1]))
                    .followedBy("C").where(new Word(words[2])).followedBy("D").where(new Word(words[3])).within(within);
            default:
                return Pattern.<Event>begin("A").where(new Word(words[0])).followedByAny("B").where(new Word(words[1]))
                    .followedByAny("C").where(new Word(words[2])).within(within);
        }
    }

    static Record record(String question) {
        switch (question) {
            case "rise": return new RecordRise();
            case "drop": return new RecordDrop();
            case "path": return new RecordTimes(true);
            case "funnel": return new RecordTimes(false);
            default: return new RecordCounts();
        }
    }

    /** Rows of the SQL answer: numbers as they are. */
    static final class RecordRow extends RichFlatMapFunction<Row, Integer> {
        transient Map<Object, Integer> codes;

        @Override
        public void open(OpenContext context) {
            codes = new HashMap<>();
            if (in.names != null) for (int i = 0; i < in.names.length; i++) codes.put(in.names[i], i);
        }

        @Override
        public void flatMap(Row row, Collector<Integer> out) {
            answer.add(codes.get(row.getField(0)), word(row, 1), word(row, 2), word(row, 3), word(row, 4));
        }

        static long word(Row row, int i) {
            if (i >= row.getArity()) return 0;
            Object value = row.getField(i);
            return value instanceof Double ? Double.doubleToRawLongBits((Double) value) : ((Number) value).longValue();
        }

        @Override
        public void close() {
            lastNanos = System.nanoTime();
            lastCpu = cpu();
        }
    }

    static void run(String engine, String question, Map<String, String> options, int rows) throws Exception {
        answer = new Answer(5);
        if (question.equals("counted")) answer.columns[0] = new long[Integer.parseInt(options.get("keys"))];
        Configuration configuration = new Configuration();
        configuration.setString("parallelism.default", "1");
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("taskmanager.numberOfTaskSlots", "1");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        DataStream<Event> events = env
            .fromSource(new NumberSequenceSource(0, rows - 1), WatermarkStrategy.noWatermarks(), "numbers")
            .map(new Make()).returns(TypeInformation.of(Event.class))
            .assignTimestampsAndWatermarks(
                WatermarkStrategy.<Event>forMonotonousTimestamps().withTimestampAssigner((e, t) -> e.ts));
        if (engine.equals("cep")) {
            // One slot: each key is in the right place already, so no event is copied to another task.
            KeyedStream<Event, Integer> keyed =
                DataStreamUtils.reinterpretAsKeyedStream(events, e -> e.code, Types.INT);
            SingleOutputStreamOperator<Integer> found =
                CEP.pattern(keyed, pattern(question, options)).process(record(question), Types.INT);
            found.sinkTo(new DiscardingSink<>());
        } else {
            StreamTableEnvironment tables = StreamTableEnvironment.create(env);
            Schema.Builder schema = Schema.newBuilder();
            for (String c : options.get("columns").split(",")) schema.column(c.split(" ")[0], c.split(" ")[1]);
            schema.columnByMetadata("rt", "TIMESTAMP_LTZ(3)", "rowtime", true).watermark("rt", "SOURCE_WATERMARK()");
            tables.createTemporaryView(options.get("table"), tables.fromDataStream(events, schema.build()));
            Table found = tables.sqlQuery(Files.readString(Path.of(options.get("statement"))));
            tables.toDataStream(found).flatMap(new RecordRow()).returns(Types.INT).sinkTo(new DiscardingSink<>());
        }
        env.execute();
    }

    static long[] longs(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        long[] found = new long[bytes.remaining() / 8];
        bytes.asLongBuffer().get(found);
        return found;
    }

    static String[] lines(Path file) throws IOException {
        return Files.exists(file) ? Files.readAllLines(file).toArray(new String[0]) : null;
    }

    static Columns read(Path folder) throws IOException {
        Columns c = new Columns();
        c.ts = longs(folder.resolve("ts"));
        long[] code = longs(folder.resolve("code"));
        c.code = new int[code.length];
        for (int i = 0; i < code.length; i++) c.code[i] = (int) code[i];
        c.names = lines(folder.resolve("names"));
        c.words = lines(folder.resolve("words"));
        if (c.words != null) c.word = Files.readAllBytes(folder.resolve("word"));
        if (Files.exists(folder.resolve("price"))) {
            long[] bits = longs(folder.resolve("price"));
            c.price = new double[bits.length];
            for (int i = 0; i < bits.length; i++) c.price[i] = Double.longBitsToDouble(bits[i]);
        }
        if (Files.exists(folder.resolve("whole"))) c.whole = longs(folder.resolve("whole"));
        if (Files.exists(folder.resolve("volume"))) c.volume = longs(folder.resolve("volume"));
        return c;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 2; i < arguments.length; i++) {
            int at = arguments[i].indexOf('=');
            options.put(arguments[i].substring(0, at), arguments[i].substring(at + 1));
        }
        in = read(Path.of(options.get("input")));
        int warm = Math.min(Integer.parseInt(options.get("warm")), in.ts.length);
        long start = System.nanoTime();
        run(arguments[0], arguments[1], options, warm);
        double warmSeconds = (System.nanoTime() - start) / 1e9;
        System.gc();
        start = System.nanoTime();
        long startCpu = cpu();
        run(arguments[0], arguments[1], options, in.ts.length);
        double whole = (System.nanoTime() - start) / 1e9, wholeCpu = (cpu() - startCpu) / 1e9;
        int count = arguments[1].equals("counted") ? answer.columns[0].length : answer.count;
        Path file = Path.of(options.get("answer"));
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file)))) {
            for (long[] column : answer.columns) {
                ByteBuffer bytes = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
                for (int i = 0; i < count && i < column.length; i++) bytes.putLong(8 * i, column[i]);
                out.write(bytes.array());
            }
        }
        System.out.printf(
            "{\"seconds\": %.4f, \"cpu_seconds\": %.4f, \"job_seconds\": %.4f, \"job_cpu_seconds\": %.4f, "
                + "\"warm_up_seconds\": %.4f, \"rows\": %d}%n",
            (lastNanos - firstNanos) / 1e9, (lastCpu - firstCpu) / 1e9, whole, wholeCpu, warmSeconds, count);
    }
}
