"""Media types that the generator of requests does not know by itself."""

import schemathesis


@schemathesis.serializer("application/toml")
def toml(ctx, value):
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else str(value).encode()
