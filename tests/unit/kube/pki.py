"""Real certificates for tests of connections."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificates(name):
    """PEM of a CA, of a server of that name with its key, and of a user with its key."""

    def subject(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def pem(key):
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    now = datetime.now(UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())

    def sign(text, key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(text))
            .issuer_name(subject("ca"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(hours=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    server_key, user_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = sign("ca", ca_key, x509.BasicConstraints(ca=True, path_length=None))
    server = sign("server", server_key, x509.SubjectAlternativeName([x509.DNSName(name)])) + pem(server_key)
    return ca, server, sign("someone", user_key) + pem(user_key)
