"""The condensed runs that a comparison is made from: read, judged and remembered, by several processes."""
