"""Where a table's rows are: `tokens` place keys, `items` sorts a range, `rows` moves them."""
