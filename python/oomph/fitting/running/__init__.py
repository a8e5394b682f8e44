"""Steps under a plan: batches cut into parts, ranks that agree, and what is needed to repeat a part that ran out of memory."""
