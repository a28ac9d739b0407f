"""Training: one frozen base model, one LoRA adapter and optimizer per job, one optimizer step at a time.

``trainer.Trainer`` is the entry; importing it does not import torch.
"""
