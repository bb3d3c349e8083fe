"""The house numbers as tests: sizes, layers, forbidden constructs, tools, public surface."""
