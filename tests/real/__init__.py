"""The product against a real model server: llama.cpp with a very small model.

``make test-real`` installs what it needs and runs it; nothing else does.
"""
