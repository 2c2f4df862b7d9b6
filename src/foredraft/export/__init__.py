"""Programs that phones run, made from a decoder: quantized, lowered, checked, with a manifest beside them."""
