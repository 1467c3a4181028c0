{{/* Ways out that gateway and operator share: names, the API server, Redis. */}}
{{- define "slipstream.commonEgress" -}}
{{- $policy := .Values.networkPolicy -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  {{- with $policy.dnsPodLabels }}
  to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          {{- toYaml . | nindent 10 }}
  {{- end }}
{{- /* No selector finds the API server: its address is a node's, and only the cluster's owner knows it. */}}
- ports:
    {{- range $policy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with $policy.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- if include "slipstream.ownRedis" . }}
- to:
    - podSelector:
        matchLabels:
          {{- include "slipstream.selector" (dict "root" . "component" "redis") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 6379}
{{- else if eq (include "slipstream.hasRedis" .) "true" }}
- ports:
    {{- range $policy.redis.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with $policy.redis.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
