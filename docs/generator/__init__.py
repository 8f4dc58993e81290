"""Writes the reference pages of the documentation from the code.

``python -m docs.generator`` rewrites what stands between the marks ``<!-- generated: NAME -->`` and
``<!-- end of generated -->`` in docs/; ``tests/unit/docs`` fails while a page and the code differ.
"""
