"""Which plan: what there is of a card, what plans take on the virtual GPU and in time, the search among them, and plans in words."""
