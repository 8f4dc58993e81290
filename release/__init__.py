"""What a release consists of, and how each artefact is made: the container image and the list of
what is in it.
"""
