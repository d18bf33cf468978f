"""What commands share: options, output, unknown names."""
