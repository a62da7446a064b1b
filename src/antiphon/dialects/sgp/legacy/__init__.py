"""The product's older API: chats and text completions of one choice, with their options in
`model_parameters`."""
