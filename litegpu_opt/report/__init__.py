"""Results as plain data, and the same data as a document for the screen or for a file.

`metrics_json`, `result_json` and `evaluation` build dictionaries; `panel` makes sections of text
and tables from them; the command line and `markdown` print those sections.
"""
