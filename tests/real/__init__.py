"""Tests of the product with a real model server: llama.cpp with a very small model.

Only ``make test-real`` installs their requirements and runs them.
"""
