"""Values of the completions domain: standard library only, frozen, without behaviour that needs the
outside."""
