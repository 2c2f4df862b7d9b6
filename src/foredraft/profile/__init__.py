"""What a draft does on the user's own prompts: recorded once, asked many times, judged before shipping."""
