"""Which model a published row trained: by name, by its columns, or by what models of its size are like."""
