"""The tools that the model may call. A tool is one module and one line in ``registry``."""
