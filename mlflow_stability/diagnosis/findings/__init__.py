"""From events and judgements to one list of findings."""
