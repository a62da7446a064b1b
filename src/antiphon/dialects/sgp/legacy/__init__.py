"""The product's older API: chats and text completions with one choice. Their options are in
`model_parameters`."""
