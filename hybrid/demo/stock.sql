SELECT pl.symbol, pl.start_ts, pl.last_price, pa.pa_start_ts, pa.pa_end_ts, pa.bottom
FROM stocks MATCH_RECOGNIZE (
  PARTITION BY symbol
  ORDER BY date
  MEASURES S.date AS start_ts, LAST(D.close) AS last_price
  ONE ROW PER MATCH
  PATTERN (S D{3,})
  DEFINE D AS close < PREV(close)
) AS pl
JOIN HISTORY OF stocks FROM pl.start_ts - INTERVAL 730 DAY TO pl.start_ts
  MATCH_RECOGNIZE (
    PARTITION BY symbol
    ORDER BY date
    MEASURES S.date AS pa_start_ts, T.date AS pa_end_ts, MIN(D.close) AS bottom
    ONE ROW PER MATCH
    PATTERN (S D+ U* T)
    DEFINE D AS close < PREV(close),
           U AS close > PREV(close),
           T AS close > PREV(close) AND close > S.close
  ) AS pa
  ON pa.symbol = pl.symbol AND pa.bottom BETWEEN 0.9 * pl.last_price AND 1.1 * pl.last_price
