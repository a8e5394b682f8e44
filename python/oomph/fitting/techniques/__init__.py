"""What is done to a model or an optimizer so that less is on the GPU: each can be applied to live objects and undone. Which, is for ``planning``."""
