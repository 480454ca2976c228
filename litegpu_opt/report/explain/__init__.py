"""`litegpu explain`: formulas, the same formulas with numbers in them, and their sources."""
