SELECT pl.tailnum, pl.origin, pl.dest, pl.first_ts, pl.last_ts, pl.delay, pa.pa_first_ts, pa.pa_last_ts, pa.pa_delay
FROM departures MATCH_RECOGNIZE (
  PARTITION BY tailnum
  ORDER BY ts
  MEASURES A.ts AS first_ts, C.ts AS last_ts, C.origin AS origin, C.dest AS dest, C.dep_delay AS delay
  ONE ROW PER MATCH
  PATTERN (A B C)
  WITHIN INTERVAL '1' DAY
  DEFINE B AS dep_delay > PREV(dep_delay),
         C AS dep_delay > PREV(dep_delay) AND dep_delay >= 60
) AS pl
JOIN HISTORY OF departures FROM pl.first_ts - INTERVAL '56' DAY TO pl.first_ts
  MATCH_RECOGNIZE (
    PARTITION BY tailnum
    ORDER BY ts
    MEASURES A.ts AS pa_first_ts, C.ts AS pa_last_ts, C.dep_delay AS pa_delay
    ONE ROW PER MATCH
    PATTERN (A B C)
    WITHIN INTERVAL '1' DAY
    DEFINE B AS dep_delay > PREV(dep_delay),
           C AS dep_delay > PREV(dep_delay) AND dep_delay >= 60
  ) AS pa
  ON pa.tailnum = pl.tailnum AND pa.pa_delay >= 0.5 * pl.delay
