import re, time, arviz as az
text=open("/tmp/wt/stat/docs/quickstart.md").read()
blocks=re.findall(r"```python\n(.*?)```",text,flags=re.S)
ns={}
exec(blocks[0],ns)
some=[b for b in blocks if "steps = [" in b][0].replace("step=steps)","step=steps, random_seed=SEED, progressbar=False)")
for seed in (1,2,3):
    ns["SEED"]=seed; t=time.time(); exec(some,ns); 
    r=az.rhat(ns["idata"]); print(seed, time.time()-t, float(r.beta.max() if hasattr(r,'beta') else r.posterior.beta.max()), float(r.sigma), az.summary(ns["idata"]).to_string(),flush=True)
