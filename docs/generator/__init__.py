"""Writes the reference pages of the documentation from the code.

``python -m docs.generator`` rewrites the text between the marks ``<!-- generated: NAME -->`` and
``<!-- end of generated -->`` in docs/. ``tests/unit/docs`` fails if a page differs from the code.
"""
