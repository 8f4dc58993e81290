"""The pure rules of ``gputile.admission`` behind HTTPS, with certificates that renew by themselves."""
