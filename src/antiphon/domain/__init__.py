"""Values of the domain: frozen, without behaviour that needs the outside."""
