"""What the model may do. A tool is one module plus one line in ``registry``."""
