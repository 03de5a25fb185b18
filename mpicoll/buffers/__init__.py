"""Turn the arguments of a call into checked memory: buffer forms, datatypes, operators."""
