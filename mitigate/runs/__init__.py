"""What the recipes `rlhf` and `mask-dpo` share: options, data, training, before and after."""
