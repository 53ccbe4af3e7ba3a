/* SPDX-License-Identifier: Apache-2.0 */
/* The admin page: one file, no outside resources; it reads /status every two seconds. */
extern const char admin_page[];
const char admin_page[] =
    "<!doctype html><html lang=en><meta charset=utf-8><title>kvroute</title><style>"
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:75em;color:#222}h1{font-size:1.3em}h2{font-size:1.05em;margin-top:1.6em}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .7em;border-bottom:1px solid #ddd}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00020}.ok{color:#0a7a2f}#e{color:#b00020}</style>"
    "<h1>kvroute <small id=v></small></h1><p id=s>loading</p><p id=e></p>"
    "<h2>Workers</h2><table><thead><tr><th>worker<th>endpoint<th>model<th>status<th class=n>requests<th class=n>errors</thead><tbody id=w></tbody></table>"
    "<h2>Ranks</h2><table><thead><tr><th>worker / rank<th>view<th class=n>blocks<th class=n>events<th class=n>gaps<th class=n>restarts"
    "<th class=n>prefill tokens<th class=n>decode blocks<th class=n>active</thead><tbody id=r></tbody></table>"
    "<h2>Recent decisions</h2><table><thead><tr><th>time<th>request<th>worker / rank<th>reason<th class=n>prompt<th class=n>overlap<th class=n>predicted"
    "<th class=n>actual<th class=n>TTFT ms<th class=n>status</thead><tbody id=d></tbody></table>"
    "<script>const $=i=>document.getElementById(i);"
    "function row(t,cells){const r=t.insertRow();for(const c of cells){const d=r.insertCell();let v=c;if(typeof c=='number'){d.className='n';v=c.toLocaleString('en')}"
    "else if(c&&c.cls){d.className=c.cls;v=c.t}d.textContent=v==null?'-':v}}"
    "async function tick(){try{const s=await(await fetch('status')).json();$('e').textContent='';$('v').textContent=s.version;"
    "const h=s.prompt_tokens?(100*s.actual_cached_tokens/s.prompt_tokens).toFixed(1)+' %':'-';"
    "$('s').textContent=`mode ${s.mode}, up ${Math.round(s.uptime_ms/1000)} s, ${s.requests} requests, ${s.retries} retries, ${s.errors} errors, cached ${h} of prompt tokens"
    " (predicted ${s.predicted_cached_tokens}, actual ${s.actual_cached_tokens})`;"
    "for(const i of['w','r','d'])$(i).replaceChildren();"
    "for(const w of s.workers){row($('w'),[String(w.worker_id),w.endpoint,w.model_name,{t:w.breaker_open?'breaker open':w.status,cls:w.schedulable?'ok':'bad'},w.requests,w.errors]);}"
    "for(const l of s.loads){const w=s.workers.find(w=>w.worker_id==l.worker_id)||{views:[]};const v=w.views.find(v=>v.dp_rank==l.dp_rank);"
    "row($('r'),[l.worker_id+' / '+l.dp_rank,v?{t:v.trusted?'trusted':v.reason||v.state,cls:v.trusted?'ok':'bad'}:'none',v?v.blocks:0,v?v.events:0,v?v.gaps:0,v?v.restarts:0,"
    "l.active_prefill_tokens,l.active_decode_blocks,l.active_requests]);}"
    "for(const d of s.decisions)row($('d'),[new Date(d.at_ms).toLocaleTimeString('en'),d.request_id,d.worker_id+' / '+d.dp_rank,d.reason,d.isl_tokens,d.overlap_blocks,"
    "d.predicted_cached_tokens,d.actual_cached_tokens,Math.round(d.ttft_ms),d.status]);"
    "}catch(e){$('e').textContent='no answer from the router: '+e}setTimeout(tick,2000)}tick()</script>";
