"""What makes rows fast: convolutions, layers of many models, the rewriting of a module."""
