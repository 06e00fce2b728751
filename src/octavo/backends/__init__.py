"""The ops a decoder is made of, and the back ends that compute them."""
