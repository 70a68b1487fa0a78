"""One bounded statement, from text to rows."""
