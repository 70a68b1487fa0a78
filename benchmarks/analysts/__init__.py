"""Questions that analysts ask of a table: this engine beside window functions, by sizes, keys, orders and columns."""
