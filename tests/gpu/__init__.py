"""On a machine with an NVIDIA GPU: the real driver, and programs that people run. ``make gpu`` runs these tests.

`make test` leaves them out, since a GPU cannot be installed. They use the first GPU, of which 16 GiB are to be free.
"""
