"""Checks that need a GPU: ``python -m tests.gpu``. Without one they report themselves as not run."""
