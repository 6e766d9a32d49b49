"""The discriminative annotators: an encoder with features (shipped), and a causal LM with a 4-class head."""
