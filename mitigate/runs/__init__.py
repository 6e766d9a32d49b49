"""What the recipes `rlhf` and `mask-dpo` share: options, data, the pocket world, training, before and after."""
