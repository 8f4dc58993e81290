"""The pure rules of ``gputile.core.admission`` behind HTTPS, with certificates that renew by themselves."""
