"""Reinforcement learning on TRL with sentence rewards: token credit, GRPO, Mask-DPO, preference pairs."""
