"""Tables as they are: columns of numbers, booleans, categories and dates, with missing values, become inputs.

`kinds` says what a column is taken for and codes its cells; `column_sums` are what clients could send; `table_encoding`
is fitted on their sums. `data/encoded_tables.py` applies it to a federation.
"""
