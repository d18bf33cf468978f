"""How tables, documents, pickles and databases hold their values."""
