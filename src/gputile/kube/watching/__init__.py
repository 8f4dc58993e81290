"""Lists and watches objects, and decodes them."""
