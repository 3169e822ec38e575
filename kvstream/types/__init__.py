"""The values that every floor knows: IDs, entries, images, options, the clock, patterns. No I/O."""
