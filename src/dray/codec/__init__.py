"""Calls, values and results as bytes, and back.

hash_safety  refuses crafted keys that would make sets and dicts slow
compression  large payloads made smaller where that pays, and read again
inputs       calls that the results of other jobs complete
payload      jobs and payloads as bytes; the codecs
signature    checks a call against a function's annotations, and converts its values
values       Python values as MessagePack, and back, without loss of type
"""
