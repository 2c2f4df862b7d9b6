"""Makes drafts better: text that the target writes, its states and laws, and drafts trained on them."""
