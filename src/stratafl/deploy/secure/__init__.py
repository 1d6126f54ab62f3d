"""Secure sums between sites that do not trust their host with single uploads (Bonawitz et al., 2017).

Everything here is without transport. A host drives five steps, and sites answer:

    keys     fresh public keys of every site, signed
    shares   every site deals shares of its two secrets to its peers, encrypted for each
    masked   every site sends its numbers plus a mask of its own and one for each peer; those of peers cancel
    confirm  the host says whose numbers arrived, and sites sign it
    open     sites give shares: of the own mask of whoever arrived, of the peer masks of whoever did not

`secure_site.py` and `secure_host.py` are the two sides, `session.py` what is signed, `masks.py` and `shamir.py` the
cryptography, `group.py` who is whose peer. The numbers that are added up come from `core/secure_sums.py`.
"""
