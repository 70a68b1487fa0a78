SELECT * FROM prices MATCH_RECOGNIZE (
  ORDER BY day
  MEASURES A.price AS before, LAST(DOWN.price) AS low, LAST(UP.price) AS after, LAST(day) - FIRST(day) AS days
  PATTERN (A DOWN{2,} UP+)
  DEFINE DOWN AS price < PREV(price), UP AS price > PREV(price)) AS m
